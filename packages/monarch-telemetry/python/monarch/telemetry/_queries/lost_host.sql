-- name: lost_host
-- what: Hosts that were lost, with the reason and the procs that ended with them.
-- column host, address: the host and the address of its agent
-- column state: the state of the host
-- column reason: why the host was lost
-- column lost_us: when the host was lost
-- column up_minutes: minutes that the host was part of the job
-- column procs: procs that were on the host
-- column first_rank, last_rank: the lowest and the highest rank of those procs in their meshes
-- column last_event: the last entry of the scheduler about the host
-- read: Hosts that were lost within a few seconds of each other share a switch, a rack or a scheduler. last_event has the decision of the
--   scheduler where it ended the host (preemption, time limit).
WITH lost AS (
  SELECT * FROM hosts WHERE state = 'lost' OR (left_us IS NOT NULL AND state <> 'left')
), on_host AS (
  SELECT host_id, count(*) AS procs, min(rank) AS first_rank, max(rank) AS last_rank FROM procs GROUP BY host_id
), scheduler AS (
  SELECT host, event, detail, row_number() OVER (PARTITION BY host ORDER BY timestamp_us DESC) AS place FROM job_events
  WHERE host IS NOT NULL
)
SELECT left(l.name, 60) AS host, left(l.address, 60) AS address, left(l.state, 20) AS state, left(l.reason, 120) AS reason,
  l.left_us AS lost_us, round((l.left_us - l.joined_us) / 60e6, 1) AS up_minutes, coalesce(p.procs, 0) AS procs, p.first_rank, p.last_rank,
  left(concat_ws(': ', s.event, s.detail), 80) AS last_event
FROM lost l LEFT JOIN on_host p ON p.host_id = l.host_id LEFT JOIN scheduler s ON s.host = l.name AND s.place = 1
ORDER BY l.left_us, l.name
LIMIT 15
