-- name: memory_growth
-- what: Processes whose memory grows steadily, by half or more.
-- column host, proc: the process
-- column first_mib, most_mib: the least and the greatest memory in use, in MiB
-- column mib_per_hour: memory by which the process grows in an hour, in MiB
-- column steady: how even the growth is, from 0 to 1
-- column minutes: minutes from the first to the last measurement
-- read: Growth with steady near 1 is a leak, or a cache without a bound. A process that was killed for its memory is in `procs` with
--   signal 9, and its growth is here. Growth in the first minutes is start-up: ask again later.
SELECT left(host, 60) AS host, left(proc, 80) AS proc, round(least / 1048576.0, 1) AS first_mib, round(most / 1048576.0, 1) AS most_mib,
  round(slope * 3600e6 / 1048576.0, 1) AS mib_per_hour, round(steady, 3) AS steady, round((last_us - first_us) / 60e6, 1) AS minutes
FROM (
  -- corr() adds up squares of times in microseconds, which do not fit into a floating-point number.
  SELECT host, proc, min(rss_bytes) AS least, max(rss_bytes) AS most, sqrt(regr_r2(rss_bytes, timestamp_us)) AS steady,
    regr_slope(rss_bytes, timestamp_us) AS slope, min(timestamp_us) AS first_us, max(timestamp_us) AS last_us, count(*) AS samples
  FROM resources WHERE proc IS NOT NULL AND gpu IS NULL GROUP BY host, proc
)
WHERE samples >= 6 AND steady > 0.8 AND slope > 0 AND most >= 1.5 * least AND most - least >= 67108864
ORDER BY slope DESC, host, proc
LIMIT 20
