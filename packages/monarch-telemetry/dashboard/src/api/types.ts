/** Shapes of the admin API (`/v1`) and of the dashboard API (`/api`). Identifiers are strings: they do not fit in a number. */

export interface MissingHost {
  host: string;
  reason: string;
}

export interface Stage {
  name: string;
  level: number;
  hosts: number;
  rows: number;
  ms: number;
}

export interface Coverage {
  hosts_asked: number;
  hosts_answered: number;
  missing: MissingHost[];
  rows_scanned: number;
  truncated: boolean;
  elapsed_ms: number;
  stages: Stage[];
}

export type Value = string | number | boolean | null | Value[] | { [name: string]: Value };
export type Row = Record<string, Value>;

export interface QueryRequest {
  sql: string;
  timeout_s?: number;
  require_all?: boolean;
  cursor?: string;
}

export interface QueryAnswer<R = Row> {
  rows: R[];
  coverage: Coverage;
  cursor?: string | null;
}

export type Counts = Record<string, number>;

export interface Summary {
  mesh_counts: { total: number };
  hierarchy_counts: { host_meshes: number; proc_meshes: number; actor_meshes: number };
  actor_counts: { total: number; by_status: Counts };
  message_counts: { total: number; by_status: Counts; by_endpoint: Counts; delivery_rate: number };
  /** At most 100 actors of each kind. */
  errors: { failed_actors: EndedActor[]; stopped_actors: EndedActor[]; failed_messages: number };
  timeline: {
    start_us: number | null;
    end_us: number | null;
    failure_onset_us: number | null;
    total_status_events: number;
    total_message_events: number;
  };
  health_score: number;
}

export interface EndedActor {
  actor_id: string;
  full_name: string;
  display_name: string | null;
  mesh_id: string;
  timestamp_us: number | null;
  reason: string | null;
}

export interface MessageStats {
  lifecycle: { queued: number; active: number; completed: number; failed: number };
  endpoints: { endpoint: string | null; total: number; completed: number }[];
  pairs: { from_actor_id: string; to_actor_id: string; total: number }[];
}

export interface MessageActivity {
  start_us: number | null;
  end_us: number | null;
  total: number;
  buckets: { start_us: number; count: number }[];
}

export interface DagNode {
  id: string;
  entity_id: string;
  tier: "host_mesh" | "proc_mesh" | "actor_mesh" | "host" | "proc" | "actor";
  label: string;
  subtitle: string | null;
  status: string | null;
  mesh_id: string | null;
  rank: number | null;
  is_system: boolean;
  /** Members, of a mesh. */
  count: number;
}

export interface DagEdge {
  id: string;
  source_id: string;
  target_id: string;
  type: "hierarchy" | "message";
  /** Messages. */
  count: number;
}

export interface Dag {
  nodes: DagNode[];
  edges: DagEdge[];
  snapshot_pending: boolean;
  snapshot_partial: boolean;
  resolution_error_count: number;
}

export interface Cause {
  detector: string;
  sentence: string;
  facts: { text: string; source: string }[];
  /** Names of what waits for it. */
  waiting: string[];
  consequences: string[];
  /** The next one to run. */
  command: string;
}

export interface Diagnosis {
  /** Most likely first. */
  causes: Cause[];
  procs: number;
  healthy_procs: number;
  hosts: number;
  answered_hosts: number;
  /** The part of procs and hosts that answered, of 1. */
  coverage: number;
  /** The endpoints that have run longest. */
  busy: string[];
  detectors: string[];
  sources: string[];
  missing: string[];
  left_out: { name: string; reason: string }[];
  /** What `monarch diagnose` prints. */
  text: string;
}

export interface Mesh {
  id: string;
  timestamp_us: number;
  class: string;
  given_name: string;
  full_name: string;
  shape_json: string;
  parent_mesh_id: string | null;
  parent_view_json: string | null;
}

export interface Actor {
  id: string;
  timestamp_us: number;
  mesh_id: string;
  rank: number;
  full_name: string;
  display_name: string | null;
  latest_status: string;
  status_timestamp_us: number | null;
  status_reason: string | null;
  is_system: boolean;
}

export interface StatusEvent {
  id: string;
  timestamp_us: number;
  actor_id: string;
  new_status: string;
  reason: string | null;
}

export interface Message {
  id: string;
  timestamp_us: number;
  from_actor_id: string;
  to_actor_id: string;
  endpoint: string | null;
  port_index: number | null;
}

/** `properties` is externally tagged: one key, the kind of the node. */
export interface NodePayload {
  identity: string;
  properties: Record<string, Record<string, Value>>;
  children: string[];
  parent: string | null;
  /** RFC 3339. */
  as_of: string;
}

export interface ActionAnswer {
  done: boolean;
  detail: string;
}

export type Action =
  | "stop_mesh"
  | "kill_proc"
  | "signal_proc"
  | "heal_job"
  | "kill_job"
  | "set_log_level"
  | "dump_state"
  | "cancel_query";

export interface ConfigEntry {
  name: string;
  value: Value;
  default_value?: Value;
  source: string;
  changed_from_default: boolean;
  env_var?: string | null;
}

export interface PyspyFrame {
  name: string;
  filename: string;
  line: number;
  module?: string | null;
  short_filename?: string | null;
}

export interface PyspyThread {
  thread_id: number | string;
  thread_name?: string | null;
  active?: boolean;
  owns_gil?: boolean;
  frames: PyspyFrame[];
}

export type PyspyAnswer =
  | { Ok: { pid: number; binary: string; stack_traces: PyspyThread[]; warnings: string[] } }
  | { BinaryNotFound: { searched: string[] } }
  | { Failed: { pid: number; binary: string; exit_code?: number | null; stderr: string } };

export interface ProfileRequest {
  duration_s: number;
  rate_hz: number;
  native: boolean;
  threads: boolean;
  nonblocking: boolean;
}

export interface StackCall {
  filename: string;
  /** 0 where it is not known. */
  line: number;
  name: string;
}

/** Procs of one mesh; the ranks are compressed. */
export interface Places {
  path: string;
  mesh: string | null;
  ranks: string;
  procs: number;
}

/** Equal stacks of many procs, the innermost call first. */
export interface StackEntry {
  thread: string;
  note: string | null;
  procs: number;
  threads: number;
  places: Places[];
  frames: StackCall[];
}

export interface StackReport {
  entries: StackEntry[];
  unread: { reason: string; procs: number; places: Places[] }[];
  idle: Places[];
  missing: MissingHost[];
}
