-- name: deadlock
-- what: Pairs of actors that both run an endpoint and have each waited over ten seconds for a call to the other.
-- column actor_a, actor_b: the full names of the two actors
-- column a_runs, b_runs: the endpoint that each is running
-- column a_calls, b_calls: the endpoint of the other that each has called
-- column waits_s: seconds since the later of the two calls
-- column since_us: when the later of the two calls was received
-- read: Neither of the two can go on, unless a caller does not wait for its call (broadcast). One of them has to await the call instead of
--   blocking, run the called endpoint beside the running one, or not call back. An actor that waits for itself has actor_a equal to
--   actor_b. Longer circles show as stuck_endpoint rows of about the same since_us. The state is that
--   of now; of the last snapshot where the job is not running.
WITH seen AS (
  SELECT s.snapshot_ts AS now_us, n.instance_id AS id, h.name AS endpoint, h.oldest_since AS since_us
  FROM actor_nodes n
  JOIN snapshots s ON s.snapshot_id = n.snapshot_id
  LEFT JOIN active_handlers h ON h.snapshot_id = n.snapshot_id AND h.node_id = n.node_id
  WHERE n.snapshot_id = (SELECT max(snapshot_id) FROM snapshots)
  UNION ALL
  SELECT CAST(arrow_cast(now(), 'Timestamp(Microsecond, Some("+00:00"))') AS BIGINT), actor_id, endpoint, endpoint_since_us
  FROM live_actors()
), newest AS (
  SELECT * FROM (SELECT *, max(now_us) OVER () AS newest_us FROM seen) WHERE now_us = newest_us AND endpoint IS NOT NULL
), busy AS (
  SELECT id, now_us, min(since_us) AS since_us, min(endpoint) AS endpoint FROM newest GROUP BY id, now_us
), done AS (
  SELECT DISTINCT message_id FROM message_status_events WHERE status IN ('complete', 'failed')
), waiting AS (
  SELECT m.from_actor_id, m.to_actor_id, max(m.endpoint) AS endpoint, min(m.timestamp_us) AS timestamp_us, a.now_us
  FROM messages m
  JOIN busy a ON a.id = m.from_actor_id
  LEFT ANTI JOIN done d ON d.message_id = m.id
  WHERE m.endpoint IS NOT NULL AND m.timestamp_us >= a.since_us AND m.timestamp_us < a.now_us - 10000000
  GROUP BY m.from_actor_id, m.to_actor_id, a.now_us
), pairs AS (
  SELECT least(from_actor_id, to_actor_id) AS a, greatest(from_actor_id, to_actor_id) AS b,
    max(CASE WHEN from_actor_id <= to_actor_id THEN endpoint END) AS a_calls,
    max(CASE WHEN from_actor_id >= to_actor_id THEN endpoint END) AS b_calls,
    max(timestamp_us) AS since_us, max(now_us) AS now_us
  FROM waiting GROUP BY least(from_actor_id, to_actor_id), greatest(from_actor_id, to_actor_id)
)
SELECT left(coalesce(x.full_name, CAST(p.a AS VARCHAR)), 100) AS actor_a, left(f.endpoint, 40) AS a_runs, left(p.a_calls, 40) AS a_calls,
  left(coalesce(y.full_name, CAST(p.b AS VARCHAR)), 100) AS actor_b, left(g.endpoint, 40) AS b_runs, left(p.b_calls, 40) AS b_calls,
  round((p.now_us - p.since_us) / 1e6, 1) AS waits_s, p.since_us
FROM pairs p
JOIN busy f ON f.id = p.a JOIN busy g ON g.id = p.b
LEFT JOIN actors x ON x.id = p.a LEFT JOIN actors y ON y.id = p.b
WHERE p.a_calls IS NOT NULL AND p.b_calls IS NOT NULL
ORDER BY p.since_us, p.a, p.b
LIMIT 15
