// Every view of the page, in the order of its tabs. A new view is its folder and one line here.

import type { View } from "../views/view.ts";
import { apps } from "../views/apps/apps.tsx";
import { events } from "../views/events/events.tsx";
import { functions } from "../views/functions/functions.tsx";
import { handover } from "../views/handover/handover.tsx";
import { packet } from "../views/packet/packet.tsx";
import { packets } from "../views/packets/packets.tsx";
import { phases } from "../views/phases/phases.tsx";
import { profile } from "../views/profile/profile.tsx";
import { time } from "../views/time/time.tsx";
import { trust } from "../views/trust/trust.tsx";

export const VIEWS: View[] = [packets, packet, time, functions, phases, apps, handover, profile, trust, events];
