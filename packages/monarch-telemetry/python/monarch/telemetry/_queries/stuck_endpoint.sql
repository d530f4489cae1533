-- name: stuck_endpoint
-- what: Endpoints that have been in progress for over a minute, and for three times as long as any call that ended.
-- column mesh, rank: the actor mesh and the rank in it
-- column host: the host of the actor
-- column endpoint: the endpoint
-- column running_s: seconds since the oldest call in progress began
-- column since_us: when that call began
-- column waiting: messages that wait for the actor
-- column longest_s: seconds of the longest call of this endpoint that ended
-- read: The row with the smallest since_us was stuck first; the others may wait for it (deadlock). `stacks` shows the line that
--   each waits in. An endpoint that is meant to run for ever is in the answer too. The state is that of now; of the last snapshot where
--   the job is not running.
WITH seen AS (
  SELECT s.snapshot_ts AS now_us, n.instance_id AS id, c.parent_id AS proc_id, h.name AS endpoint, h.oldest_since AS since_us,
    n.queue_depth AS waiting
  FROM actor_nodes n
  JOIN snapshots s ON s.snapshot_id = n.snapshot_id
  LEFT JOIN active_handlers h ON h.snapshot_id = n.snapshot_id AND h.node_id = n.node_id
  LEFT JOIN children c ON c.snapshot_id = n.snapshot_id AND c.child_id = n.node_id
  WHERE NOT n.is_system AND n.snapshot_id = (SELECT max(snapshot_id) FROM snapshots)
  UNION ALL
  SELECT CAST(arrow_cast(now(), 'Timestamp(Microsecond, Some("+00:00"))') AS BIGINT), actor_id, proc_id, endpoint, endpoint_since_us,
    queue_depth
  FROM live_actors() WHERE NOT is_system
), newest AS (
  SELECT * FROM (SELECT *, max(now_us) OVER () AS newest_us FROM seen) WHERE now_us = newest_us AND endpoint IS NOT NULL
), longest AS (
  SELECT mesh_name, endpoint, max(latency_max_us) AS longest_us FROM endpoint_stats WHERE side = 'server' GROUP BY mesh_name, endpoint
), running AS (
  SELECT m.given_name AS mesh, a.rank, t.name AS host, n.endpoint, n.now_us - n.since_us AS running_us, n.since_us, n.waiting,
    coalesce(g.longest_us, f.longest_us) AS longest_us
  FROM newest n
  LEFT JOIN actors a ON a.id = n.id
  LEFT JOIN meshes m ON m.id = a.mesh_id
  LEFT JOIN longest g ON g.endpoint = n.endpoint AND g.mesh_name = m.given_name
  LEFT JOIN longest f ON f.endpoint = n.endpoint AND f.mesh_name = m.full_name
  LEFT JOIN procs p ON p.proc_id = n.proc_id
  LEFT JOIN hosts t ON t.host_id = p.host_id
)
SELECT left(mesh, 60) AS mesh, rank, left(host, 60) AS host, left(endpoint, 60) AS endpoint, round(running_us / 1e6, 1) AS running_s,
  since_us, waiting, round(longest_us / 1e6, 3) AS longest_s
FROM running
WHERE running_us > 60000000 AND running_us > 3 * coalesce(longest_us, 0)
ORDER BY since_us, mesh, rank
LIMIT 20
