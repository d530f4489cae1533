"""What other wheels are built on: promises, membership, requests, bulk memory. The public names are those of `monarch.extension`."""
