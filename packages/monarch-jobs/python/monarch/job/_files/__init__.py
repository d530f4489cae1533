"""The files of jobs on the client's machine: state files, contexts, credentials, exports, the audit log. All are for their owner alone."""
