"""The image and what is said of it: `make image`, `make sbom`."""
