-- name: crash_loop
-- what: Ranks that failed three times or more, no more than ten minutes from one failure to the next on average.
-- column mesh_name, rank: the mesh and the rank
-- column host: one of the hosts on which the rank failed
-- column failures: failures that no other failure caused
-- column every_s: seconds from one failure to the next, on average
-- column first_us, last_us: the first and the last of them
-- column exit_reason: how the rank ended, of one of them
-- column message: the start of the error, of one of them
-- column messages: different errors among them
-- read: With messages 1 the cause stays there at each start: configuration, input, or a host that is broken. A loop that is over has a
--   last_us of long ago.
SELECT left(mesh_name, 60) AS mesh_name, rank, left(host, 60) AS host, failures,
  round((last_us - first_us) / 1e6 / (failures - 1), 1) AS every_s,
  first_us, last_us, left(exit_reason, 80) AS exit_reason, left(message, 160) AS message, messages
FROM (
  SELECT mesh_name, rank, max(host) AS host, count(*) AS failures, min(timestamp_us) AS first_us, max(timestamp_us) AS last_us,
    max(left(exit_reason, 80)) AS exit_reason, max(left(message, 160)) AS message, count(DISTINCT left(message, 160)) AS messages
  FROM failures WHERE first_cause GROUP BY mesh_name, rank
)
WHERE failures >= 3 AND last_us - first_us <= 600000000 * (failures - 1)
ORDER BY failures DESC, mesh_name, rank
LIMIT 12
