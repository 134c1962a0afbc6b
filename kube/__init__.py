"""The API server seen from Python: client, informers, patches, events, leader lease, conversion to engine data."""
