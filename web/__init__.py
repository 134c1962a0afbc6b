"""The page: what is where in a cluster as a picture in a browser, kept up to date. Read-only (docs/web.md)."""
