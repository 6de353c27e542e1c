"""The Space: a page, an API and an MCP tool around ``HomologyChecker``, using only the public names of ``mdir_hf``."""
