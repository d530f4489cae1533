"""The basis of other wheels: promises, membership, requests, bulk memory. The public names are those of `monarch.extension`."""
