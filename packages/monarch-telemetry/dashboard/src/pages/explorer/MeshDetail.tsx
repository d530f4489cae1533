import type { Mesh } from "../../api/types";
import { id } from "../../api/sql";
import { client } from "../../live/session";
import { useLive } from "../../live/useLive";
import { Donut } from "../../parts/Donut";
import { Facts } from "../../parts/Facts";
import { Panel } from "../../parts/Panel";
import { Link, Problem } from "../../parts/State";
import { href } from "../../router";
import { Confirm } from "./Confirm";
import { isActorMesh } from "./items";

export function MeshDetail({ mesh }: { mesh: Mesh | null }) {
  if (mesh === null) return <p class="empty">There is no mesh with this identifier, or it is not loaded yet.</p>;
  return (
    <>
      <Panel title={mesh.given_name}>
        <Facts values={{ ...mesh }} />
        <p>
          <Link to={href("logs", [], { mesh: mesh.full_name })}>Logs of this mesh</Link>
        </p>
        <Confirm
          title="Stop mesh"
          question={`Stop ${mesh.full_name} and everything that was spawned on it?`}
          action="stop_mesh"
          body={{ target: mesh.full_name }}
        />
      </Panel>
      {isActorMesh(mesh) && <Statuses mesh={mesh} />}
    </>
  );
}

export function statusCounts(meshId: string): string {
  return `SELECT status, count(*) AS actors FROM (
SELECT first_value(e.new_status ORDER BY e.timestamp_us DESC, e.id DESC) AS status
FROM actor_status_events e JOIN actors a ON e.actor_id = a.id WHERE a.mesh_id = ${id(meshId)} GROUP BY e.actor_id) GROUP BY status`;
}

function Statuses({ mesh }: { mesh: Mesh }) {
  const counts = useLive((signal) => client.query<{ status: string; actors: number }>(statusCounts(mesh.id), signal), [mesh.id], { every: 5000, events: true });
  return (
    <Panel title="Actors by status">
      <Problem error={counts.error} at={counts.at} />
      {counts.data && <Donut label="actors by status" counts={Object.fromEntries(counts.data.rows.map((row) => [row.status, row.actors]))} />}
    </Panel>
  );
}
