-- name: first_cause
-- what: The failures that no other failure caused, the earliest first, with the number of failures that each caused.
-- column timestamp_us: when the failure was noticed
-- column kind: user (code of the program), system (the runtime) or infrastructure (process, host, network)
-- column mesh_name, rank: the mesh and the rank that failed
-- column host, pid: the process that failed
-- column endpoint: the endpoint that was running
-- column exit_reason: how the actor or process ended
-- column message: the start of the text of the error
-- column last_lines: the end of what the process wrote last
-- column caused: failures that this failure caused directly
-- read: The first row is where to begin; later failures are consequences more often than causes. A failure of kind infrastructure
--   points to lost_host, slow_link or memory_growth. The traceback is in `failures.traceback`.
SELECT f.timestamp_us, f.kind, left(f.mesh_name, 60) AS mesh_name, f.rank, left(f.host, 60) AS host, f.pid,
  left(f.endpoint, 60) AS endpoint, left(f.exit_reason, 80) AS exit_reason,
  left(f.message, 300) AS message, right(f.last_lines, 300) AS last_lines,
  coalesce(c.caused, 0) AS caused
FROM failures f
LEFT JOIN (SELECT cause_id, count(*) AS caused FROM failures WHERE cause_id IS NOT NULL GROUP BY cause_id) c ON c.cause_id = f.id
WHERE f.first_cause
ORDER BY f.timestamp_us, f.id
LIMIT 5
