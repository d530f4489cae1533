"""What the collector of a host keeps: columns in partitions, within a budget."""
