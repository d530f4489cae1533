"""Who asks the collectors: a question goes to the hosts, their parts come back as one answer with its coverage."""
