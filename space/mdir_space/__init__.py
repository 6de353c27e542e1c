"""The Space: a page, an API and an MCP server. Each folder imports only later ones: page, routes, html, jobs."""
