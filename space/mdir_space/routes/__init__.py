"""HTTP: the API, the MCP server, cards for other pages, and middleware."""
