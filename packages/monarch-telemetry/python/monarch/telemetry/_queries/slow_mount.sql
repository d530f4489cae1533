-- name: slow_mount
-- what: Mounts of files that fail, show an older tree than other hosts, or make reads wait far more often than on other hosts.
-- column target: the mount point
-- column host: the host
-- column state: the state of the mount
-- column generation, newest: the tree that this host shows, and the newest of any host
-- column faults: reads that had to wait for the source
-- column usual: the median of the reads that waited over the hosts of this mount point
-- column errors: events of type error, failed, refused or store_full
-- column last_error: one of those events, with its path and detail
-- read: With generation below newest the host missed a refresh. Faults on one host only point to its link (slow_link) or to a full
--   store; faults on all hosts are a first read of everything.
SELECT left(target, 80) AS target, left(host, 60) AS host, left(state, 20) AS state, generation, newest, faults,
  CAST(usual AS BIGINT) AS usual, errors, left(last_error, 120) AS last_error
FROM (
  SELECT *, median(faults) OVER (PARTITION BY target) AS usual, max(generation) OVER (PARTITION BY target) AS newest
  FROM (
    SELECT target, host, max(state) AS state, max(generation) AS generation, max(faults) AS faults, sum(is_error) AS errors,
      max(error) AS last_error
    FROM (
      SELECT target, host, state, generation, faults, 0 AS is_error, NULL AS error FROM mounts
      UNION ALL
      SELECT target, host, NULL, NULL, NULL, 1, left(concat_ws(' ', event, path, detail), 120) FROM fs_events
      WHERE event IN ('error', 'failed', 'refused', 'store_full')
    )
    GROUP BY target, host
  )
)
WHERE errors > 0 OR state = 'failed' OR generation < newest OR (faults >= 100 AND faults > 10 * usual)
ORDER BY errors DESC, faults DESC, target, host
LIMIT 20
