-- name: log_burst
-- what: Minutes in which a process wrote far more lines than processes of the job usually write in a minute.
-- column minute_us: the start of the minute
-- column host, proc, stream: the process and its stream
-- column lines: lines in this minute
-- column usual: the median number of lines of a process and stream in a minute
-- column errors: lines of level error or above
-- column bytes: characters of the lines
-- column first_line: the first of the lines in the order of the alphabet
-- read: The process with the earliest minute_us began. Equal lines of many processes are one cause: compare first_line. Lines of a burst
--   may push older lines out of `logs`: `telemetry_status` has what was dropped.
SELECT minute_us, left(host, 60) AS host, left(proc, 60) AS proc, stream, lines, CAST(usual AS BIGINT) AS usual, errors, bytes,
  left(first_line, 160) AS first_line
FROM (
  SELECT *, median(lines) OVER () AS usual
  FROM (
    SELECT timestamp_us / 60000000 * 60000000 AS minute_us, host, proc, stream, count(*) AS lines,
      sum(CASE WHEN upper(level) IN ('ERROR', 'CRITICAL', 'FATAL') THEN 1 ELSE 0 END) AS errors, sum(length(line)) AS bytes,
      min(left(line, 160)) AS first_line
    FROM logs GROUP BY timestamp_us / 60000000 * 60000000, host, proc, stream
  )
)
WHERE lines >= 1000 AND lines >= 10 * usual
ORDER BY lines DESC, minute_us, host, proc
LIMIT 15
