// Where the reader is: which view, which packet, which function, which filter. It is in the address, so that links,
// back and forward work; everything else a view keeps for itself.

import { batch, computed, signal } from "@preact/signals";

export interface Place {
  view: string;
  where: string;
  /** The piece of time that was brushed, ns since the log's start. */
  time: [number, number] | null;
  packet: number | null;
  /** A frame without a packet, as CAPTURE.NUMBER. Either a packet is chosen or a frame. */
  frame: string | null;
  func: number | null;
  /** Of an application: the kernel's cookie, which a double may not hold. */
  socket: string | null;
  /** Of an application: a call that wrote. */
  call: number | null;
  /** Of a profile: a process by its number there. */
  process: number | null;
  handover: number | null;
  /** Of a log of several devices. */
  device: string | null;
}

export const START: Place = { view: "", where: "", time: null, packet: null, frame: null, func: null, socket: null, call: null, process: null, handover: null, device: null };

export function writePlace(p: Place): string {
  const parts: string[] = [];
  if (p.where) parts.push(`where=${encodeURIComponent(p.where)}`);
  if (p.time) parts.push(`time=${Math.round(p.time[0])}-${Math.round(p.time[1])}`);
  if (p.packet !== null) parts.push(`packet=${p.packet}`);
  if (p.frame !== null) parts.push(`frame=${p.frame}`);
  if (p.func !== null) parts.push(`func=${p.func}`);
  if (p.socket !== null) parts.push(`socket=${p.socket}`);
  if (p.call !== null) parts.push(`call=${p.call}`);
  if (p.process !== null) parts.push(`process=${p.process}`);
  if (p.handover !== null) parts.push(`handover=${p.handover}`);
  if (p.device !== null) parts.push(`device=${encodeURIComponent(p.device)}`);
  return `#/${p.view}${parts.length ? `?${parts.join("&")}` : ""}`;
}

/** What an address says; parts that make no sense are as if they were not there. */
export function readPlace(hash: string): Place {
  const found = /^#\/([a-z]*)(?:\?(.*))?$/.exec(hash);
  if (!found) return START;
  const params = new URLSearchParams(found[2] ?? "");
  const whole = (name: string) => {
    const text = params.get(name);
    return text !== null && /^\d{1,15}$/.test(text) ? Number(text) : null;
  };
  const time = /^(\d{1,15})-(\d{1,15})$/.exec(params.get("time") ?? "");
  return {
    view: found[1] ?? "",
    where: params.get("where") ?? "",
    time: time && Number(time[1]) < Number(time[2]) ? [Number(time[1]), Number(time[2])] : null,
    packet: whole("packet"),
    frame: whole("packet") === null && /^\d{1,5}\.\d{1,15}$/.test(params.get("frame") ?? "") ? params.get("frame") : null,
    func: whole("func"),
    socket: /^\d{1,19}$/.test(params.get("socket") ?? "") ? params.get("socket") : null,
    call: whole("call"),
    process: whole("process"),
    handover: whole("handover"),
    device: params.get("device"),
  };
}

/** The filter as the service is asked: what was typed, and the brushed piece of time. */
export function asked(where: string, time: [number, number] | null): string {
  if (!time) return where;
  const piece = `time >= ${Math.round(time[0])}ns and time <= ${Math.round(time[1])}ns`;
  return where.trim() ? `(${where}) and ${piece}` : piece;
}

export const place = signal<Place>(START);

/** Parts of the place, for whoever is drawn again only when that part changes. */
export const at = {
  view: computed(() => place.value.view),
  where: computed(() => place.value.where),
  time: computed(() => place.value.time),
  packet: computed(() => place.value.packet),
  frame: computed(() => place.value.frame),
  func: computed(() => place.value.func),
  socket: computed(() => place.value.socket),
  call: computed(() => place.value.call),
  process: computed(() => place.value.process),
  handover: computed(() => place.value.handover),
  device: computed(() => place.value.device),
};

/** Go there. `quietly` replaces the entry in the history: for moves too small to come back to. */
export function go(to: Partial<Place>, quietly = false): void {
  const next = { ...place.value, ...to };
  if (to.packet !== undefined && to.packet !== null) next.frame = null;
  else if (to.frame) next.packet = null;
  const hash = writePlace(next);
  if (hash === location.hash) return;
  history[quietly ? "replaceState" : "pushState"](null, "", hash);
  place.value = next;
}

/** Follow the address from now on. */
export function followAddress(): void {
  const read = () => batch(() => (place.value = readPlace(location.hash)));
  addEventListener("popstate", read);
  addEventListener("hashchange", read);
  read();
}
