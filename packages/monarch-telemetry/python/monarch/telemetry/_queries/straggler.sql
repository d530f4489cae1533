-- name: straggler
-- what: Ranks of a mesh that need far longer for a message than the middle rank of their mesh.
-- column mesh, rank: the actor mesh and the rank in it
-- column host: the host of the actor
-- column mean_ms: the mean time of the actor for a message, in milliseconds, since the first snapshot
--   that is kept, or since the actor was made
-- column usual_ms: the median of these means over the ranks of the mesh, in milliseconds
-- column times: mean_ms as a multiple of usual_ms
-- column handled: messages that the actor handled in that time
-- column last_handler: the endpoint that the actor ran last
-- read: A row is a rank that holds up collective work. Several rows of one host point to the host (gpu_idle, slow_mount); a single row
--   points to the work of the rank (stacks). Meshes of fewer than three ranks have no middle and are left out, and
--   so are actors that have handled fewer than ten messages.
WITH work AS (
  SELECT instance_id, max(host) AS live_host, max(last_handler) AS last_handler,
    max(busy_us) - CASE WHEN count(*) > 1 THEN min(busy_us) ELSE 0 END AS busy_us,
    max(handled) - CASE WHEN count(*) > 1 THEN min(handled) ELSE 0 END AS handled
  FROM (
    SELECT instance_id, NULL AS host, last_message_handler AS last_handler, total_processing_time_us AS busy_us,
      messages_processed AS handled
    FROM actor_nodes WHERE NOT is_system
    UNION ALL
    SELECT actor_id, host, endpoint, total_processing_time_us, messages_processed FROM live_actors() WHERE NOT is_system
  )
  GROUP BY instance_id
), place AS (
  SELECT c.child_id, max(h.name) AS host
  FROM (SELECT DISTINCT child_id, parent_id FROM children) c
  JOIN procs p ON p.proc_id = c.parent_id JOIN hosts h ON h.host_id = p.host_id GROUP BY c.child_id
), means AS (
  SELECT m.given_name AS mesh, a.mesh_id, a.rank, a.id, w.handled, w.last_handler, w.live_host, w.busy_us / 1000.0 / w.handled AS mean
  FROM work w JOIN actors a ON a.id = w.instance_id JOIN meshes m ON m.id = a.mesh_id WHERE w.handled >= 10
), compared AS (
  SELECT *, median(mean) OVER (PARTITION BY mesh_id) AS usual, count(*) OVER (PARTITION BY mesh_id) AS ranks FROM means
)
SELECT left(c.mesh, 60) AS mesh, c.rank, left(coalesce(p.host, c.live_host), 60) AS host, round(c.mean, 3) AS mean_ms,
  round(c.usual, 3) AS usual_ms,
  round(c.mean / c.usual, 1) AS times, c.handled, left(c.last_handler, 60) AS last_handler
FROM compared c LEFT JOIN place p ON p.child_id = c.id
WHERE c.ranks >= 3 AND c.mean > 1.5 * c.usual AND c.mean > c.usual + 1
ORDER BY c.mean - c.usual DESC, mesh, c.rank
LIMIT 20
