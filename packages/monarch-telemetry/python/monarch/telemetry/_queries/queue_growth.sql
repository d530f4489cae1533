-- name: queue_growth
-- what: Actors whose queue of messages grows from snapshot to snapshot.
-- column mesh, rank: the actor mesh and the rank in it
-- column actor_type: the class of the actor
-- column depth_min, depth_max: the least and the greatest number of messages that waited
-- column per_minute: messages by which the queue grows in a minute
-- column handled: messages that the actor handled in that time
-- column last_handler: the endpoint that the actor ran last
-- read: Callers send faster than the actor handles. With handled 0 the actor is stuck (stuck_endpoint, deadlock); one rank among many
--   is a straggler; all ranks of a mesh need more actors, or callers that wait for answers.
WITH depth AS (
  SELECT n.instance_id, max(n.actor_type) AS actor_type, min(n.queue_depth) AS depth_min, max(n.queue_depth) AS depth_max,
    -- corr() adds up squares of times in microseconds, which do not fit into a floating-point number.
    sqrt(regr_r2(n.queue_depth, s.snapshot_ts)) AS steady, regr_slope(n.queue_depth, s.snapshot_ts) * 60e6 AS growth,
    max(n.messages_processed) - min(n.messages_processed) AS handled, max(n.last_message_handler) AS last_handler, count(*) AS snapshots
  FROM actor_nodes n JOIN snapshots s ON s.snapshot_id = n.snapshot_id WHERE NOT n.is_system GROUP BY n.instance_id
)
SELECT left(m.given_name, 60) AS mesh, a.rank, left(d.actor_type, 60) AS actor_type, d.depth_min, d.depth_max,
  round(d.growth, 1) AS per_minute, d.handled, left(d.last_handler, 60) AS last_handler
FROM depth d LEFT JOIN actors a ON a.id = d.instance_id LEFT JOIN meshes m ON m.id = a.mesh_id
WHERE d.snapshots >= 3 AND d.steady > 0.8 AND d.growth > 0 AND d.depth_max >= 2 * d.depth_min AND d.depth_max - d.depth_min >= 100
ORDER BY per_minute DESC, mesh, rank
LIMIT 20
