"""The Jupyter server extension: REST routes, a WebSocket with snapshots, and keeping a coordinator alive."""
