// Where the page begins.

import "./app.css";
import { effect } from "@preact/signals";
import { render } from "preact";
import { device as asked, takeToken } from "../api/ask.ts";
import { openLog } from "../api/log.ts";
import { followAddress, place } from "../base/place.ts";
import { followTheme } from "../base/theme.ts";
import { Frame } from "./frame.tsx";

followTheme();
const token = takeToken();
followAddress();
let opened: string | null | undefined;
effect(() => {
  const device = place.value.device;
  if (device === opened) return;
  opened = device;
  asked.value = device;
  void token.then(openLog);
});
render(<Frame />, document.getElementById("app")!);
