import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import "./style.css";
import { fromFragment, take } from "./api/token";
import { App } from "./app";
import { startStream, token, useToken } from "./live/session";
import { showUnseen } from "./text/visible";
import { startTheme } from "./theme";

showUnseen();
startTheme();
token.set(take(location, sessionStorage, history));
// A link with a token may be opened in a tab that shows the dashboard.
addEventListener("hashchange", () => {
  const given = fromFragment(location.hash);
  take(location, sessionStorage, history);
  if (given !== null) useToken(given);
});
render(<App />, document.getElementById("app")!);
startStream();
