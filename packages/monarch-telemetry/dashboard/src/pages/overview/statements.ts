/** What the overview asks beyond the routes of the dashboard API. */

import type { Client } from "../../api/client";
import { integer } from "../../api/sql";
import type { Failure } from "./chains";

export interface HostRow {
  name: string;
  address: string;
  state: string;
  reason: string | null;
  cpus: number;
  memory_bytes: number;
  version: string;
  joined_us: number;
  procs: number;
}

export interface Usage {
  host: string;
  measured_us: number;
  cpu_pct: number;
  rss_bytes: number;
}

export interface EndpointRow {
  mesh_name: string;
  endpoint: string;
  calls: number;
  errors: number;
  mean_us: number;
  max_us: number;
}

const HOSTS = `SELECT h.name, h.address, h.state, h.reason, h.cpus, h.memory_bytes, h.version, h.joined_us, count(p.proc_id) AS procs
FROM hosts h LEFT JOIN procs p ON p.host_id = h.host_id AND p.ended_us IS NULL
GROUP BY h.name, h.address, h.state, h.reason, h.cpus, h.memory_bytes, h.version, h.joined_us ORDER BY h.name LIMIT 10000`;

const FAILURES = `SELECT CAST(id AS VARCHAR) AS id, timestamp_us, kind, first_cause, CAST(cause_id AS VARCHAR) AS cause_id, mesh_name, rank, host,
endpoint, message FROM failures ORDER BY timestamp_us DESC LIMIT 500`;

const ENDPOINTS = `SELECT mesh_name, endpoint, sum(count) AS calls, sum(errors) AS errors,
CAST(sum(latency_sum_us) AS DOUBLE) / sum(count) AS mean_us, max(latency_max_us) AS max_us
FROM endpoint_stats WHERE side = 'server' GROUP BY mesh_name, endpoint HAVING sum(count) > 0 ORDER BY calls DESC LIMIT 200`;

export async function hosts(client: Client, signal: AbortSignal): Promise<HostRow[]> {
  return (await client.query<HostRow>(HOSTS, signal)).rows;
}

export async function usage(client: Client, signal: AbortSignal): Promise<Usage[]> {
  const since = integer(client.serverNow() - 60e6);
  const sql = `SELECT host, max(timestamp_us) AS measured_us, avg(cpu_pct) AS cpu_pct, max(rss_bytes) AS rss_bytes FROM resources
WHERE proc IS NULL AND gpu IS NULL AND timestamp_us >= ${since} GROUP BY host`;
  return (await client.query<Usage>(sql, signal)).rows;
}

export async function failures(client: Client, signal: AbortSignal): Promise<Failure[]> {
  return (await client.query<Failure>(FAILURES, signal)).rows;
}

export async function endpoints(client: Client, signal: AbortSignal): Promise<EndpointRow[]> {
  return (await client.query<EndpointRow>(ENDPOINTS, signal)).rows;
}
