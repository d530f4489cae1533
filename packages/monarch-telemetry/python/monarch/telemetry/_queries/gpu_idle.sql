-- name: gpu_idle
-- what: GPUs that did nothing in the last five minutes although a process holds their memory, or although they were busy before.
-- column host, gpu: the GPU
-- column util_pct: the mean time in percent in which the GPU was busy, over the last five minutes
-- column busiest_pct: the busiest minute of the GPU before, in percent
-- column memory_mib: memory of the GPU in use, in MiB
-- column others_pct: the mean over the last five minutes of the other GPUs of the job, in percent
-- column minute_us: the start of the last minute that was measured
-- read: With others_pct high the GPU waits for nothing that the others wait for: look at its process (stuck_endpoint, stacks). With
--   others_pct low too, the whole job waits: look at first_cause, slow_mount, straggler and deadlock.
WITH minutes AS (
  SELECT host, gpu, timestamp_us / 60000000 * 60000000 AS minute_us, avg(gpu_util_pct) AS util_pct, max(gpu_memory_bytes) AS memory
  FROM resources WHERE gpu IS NOT NULL AND gpu_util_pct IS NOT NULL GROUP BY host, gpu, timestamp_us / 60000000 * 60000000
), marked AS (
  SELECT *, minute_us > max(minute_us) OVER () - 300000000 AS recent, max(minute_us) OVER () AS newest_us FROM minutes
), gpus AS (
  SELECT host, gpu, avg(CASE WHEN recent THEN util_pct END) AS util_pct, max(CASE WHEN NOT recent THEN util_pct END) AS busiest_pct,
    max(CASE WHEN recent THEN memory END) AS memory, sum(CASE WHEN recent THEN 1 ELSE 0 END) AS samples, max(newest_us) AS minute_us
  FROM marked GROUP BY host, gpu
), compared AS (
  SELECT *, sum(util_pct) OVER () AS all_pct, count(util_pct) OVER () AS gpus FROM gpus
)
SELECT left(host, 60) AS host, gpu, round(util_pct, 1) AS util_pct, round(busiest_pct, 1) AS busiest_pct,
  round(memory / 1048576.0, 1) AS memory_mib,
  round(CASE WHEN gpus > 1 THEN (all_pct - util_pct) / (gpus - 1) END, 1) AS others_pct, minute_us
FROM compared
WHERE samples >= 2 AND util_pct < 5 AND (memory >= 268435456 OR busiest_pct >= 50)
ORDER BY util_pct, host, gpu
LIMIT 20
