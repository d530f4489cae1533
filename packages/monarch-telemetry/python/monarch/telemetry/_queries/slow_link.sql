-- name: slow_link
-- what: Connections between hosts that are down, were connected again several times, or have a far longer round trip than others.
-- column from_host, to_host: the ends of the connection
-- column kind: the transport
-- column state: up, down or resuming
-- column rtt_us: the last round trip, in microseconds
-- column usual_us: the median round trip of the connections of this kind, in microseconds
-- column reconnects: how often the connection was made again
-- column unacked: messages that the other end has not acknowledged
-- column last_error: why the connection was down last
-- read: A host that is in all rows is the slow one, or its network card. Two hosts that are slow with each other only have a bad cable
--   or route between them.
SELECT left(from_host, 60) AS from_host, left(to_host, 60) AS to_host, left(kind, 20) AS kind, left(state, 20) AS state, rtt_us, usual_us,
  reconnects, unacked, left(last_error, 120) AS last_error
FROM (SELECT *, CAST(median(rtt_us) OVER (PARTITION BY kind) AS BIGINT UNSIGNED) AS usual_us FROM links)
WHERE state <> 'up' OR reconnects >= 3 OR (rtt_us > 5 * usual_us AND rtt_us > usual_us + 1000)
ORDER BY state = 'up', rtt_us DESC, reconnects DESC, from_host, to_host
LIMIT 20
