"""Parts of the snapshot, with the users that may see each part."""
