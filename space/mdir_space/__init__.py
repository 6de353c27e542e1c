"""The Space: a page, an API and an MCP server. Its folders import downwards: page, routes, html, jobs."""
