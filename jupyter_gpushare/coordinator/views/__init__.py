"""Parts of the snapshot, and the users that may see each part."""
