/** The bearer token: it comes in the fragment of the URL, which browsers do not send, and stays in this tab. */

const KEY = "monarch.token";

export interface Place {
  hash: string;
  pathname: string;
  search: string;
}

/** The token of a fragment: `#token=TOKEN`, or `#TOKEN`. */
export function fromFragment(hash: string): string | null {
  const fragment = hash.replace(/^#/, "");
  if (fragment === "") return null;
  const named = new URLSearchParams(fragment).get("token");
  if (named !== null && named !== "") return named;
  return /^[A-Za-z0-9._~+/-]{16,}=*$/.test(fragment) ? fragment : null;
}

/** Moves the token from the URL into the storage of the tab, and returns the token. */
export function take(place: Place, storage: Storage, history: Pick<History, "replaceState">): string | null {
  const token = fromFragment(place.hash);
  if (token === null) return storage.getItem(KEY);
  storage.setItem(KEY, token);
  history.replaceState(null, "", place.pathname + place.search);
  return token;
}

export function keep(token: string, storage: Storage): void {
  storage.setItem(KEY, token);
}
