// Whom the CPUs worked for: each process with its own time and what was done for it, whose time that was, and the functions it went to.

import { signal, useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { useQuestion } from "../../api/question.ts";
import type { Flame, Profile, ProfileAnswer, ProfileProcess } from "../../api/types.ts";
import { at, go } from "../../base/place.ts";
import { count, many, seen, share, span } from "../../base/units.ts";
import { FlamePicture } from "../../widgets/flame.tsx";
import { Span } from "../../widgets/marks.tsx";
import { Split } from "../../widgets/split.tsx";
import { Answer, Empty } from "../../widgets/states.tsx";
import type { View } from "../view.ts";
import { called, idOf, matrix, tint } from "./model.ts";
import "./profile.css";

const SIDES = 8;
/** Before "All" is pressed: so many that the matrix below is not out of sight. */
const FIRST = 16;
const ROWS = 60;
const CONTEXTS = ["task", "page fault", "softirq", "hardirq"];

/** Kept while other views are looked at. */
const context = signal("");
const search = signal("");

function Facts({ p }: { p: Profile }): JSX.Element {
  const known = new Set(["processes", "kernel", "idle"]);
  return (
    <>
      <h2>{span(p.passed)} of CPU time on {many(p.cpus, "CPU")}</h2>
      <div class="profile-bar" role="img" aria-label={p.buckets.map(([name, ns]) => `${name} ${share(ns / p.passed)}`).join(", ")}>
        {p.buckets.map(([name, ns]) => <i key={name} class={`b-${known.has(name) ? name : "other"}`} style={{ width: `${(100 * ns) / p.passed}%` }} title={`${name} ${span(ns)}`} />)}
      </div>
      <p class="muted">
        {p.buckets.map(([name, ns]) => `${name} ${span(ns)} (${share(ns / p.passed)})`).join(", ")}; {span(p.difference)} between what was charged and what passed.
        {p.packets && p.packets[1] > 0 && ` Counted: ${count(p.packets[0])} of ${many(p.packets[1], "packet")} that the kernel received.`}
        {p.requests && p.requests[1] > 0 && ` Counted: ${count(p.requests[0])} of ${many(p.requests[1], "block request")} that disks completed.`}
      </p>
    </>
  );
}

interface Heading {
  title: string;
  words?: string;
  of: (x: ProfileProcess) => number;
}

const HEADINGS: Heading[] = [
  { title: "Charged", words: "Own time and what was done for it", of: (x) => x.charged },
  { title: "User", of: (x) => x.user },
  { title: "System calls", of: (x) => x.kernel },
  { title: "Page faults", of: (x) => x.faults },
  { title: "Done for it", words: "In interrupts and kernel threads, whosever time that was", of: (x) => x.served },
  { title: "Packets", of: (x) => x.packets },
  { title: "Blocks", of: (x) => x.requests },
  { title: "Taken from it", words: "Out of its time for others, or for nobody", of: (x) => x.taken },
  { title: "Ran", words: "How long it was the task that ran: what accounts that charge the interrupted show", of: (x) => x.ran },
];

function Processes({ p }: { p: Profile }): JSX.Element {
  const all = useSignal(false);
  const by = useSignal(HEADINGS[0]!);
  const sorted = useMemo(() => [...p.processes].sort((a, b) => by.value.of(b) - by.value.of(a)), [p, by.value]);
  const rows = all.value ? sorted : sorted.slice(0, FIRST);
  const choose = (x: ProfileProcess) => go({ process: x.number === at.process.value ? null : x.number });
  return (
    <>
      <table class="plain wide profile-processes">
        <thead>
          <tr>
            <th>Process</th>
            {HEADINGS.map((h) => (
              <th key={h.title} class="right" title={h.words} aria-sort={h === by.value ? "descending" : undefined}>
                <button type="button" onClick={() => (by.value = h)}>{h.title}{h === by.value && <span aria-hidden="true"> ▾</span>}</button>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((x) => (
            <tr key={x.number} class={x.number === at.process.value ? "current" : undefined}>
              <td title={x.unit ?? x.container ?? undefined}>
                <button type="button" class="link" aria-pressed={x.number === at.process.value} onClick={() => choose(x)}>
                  {x.kernel_thread ? `[${seen(x.name)}]` : seen(x.name || "?")} {idOf(x.number)}
                </button>
              </td>
              <td class="right"><Span ns={x.charged} /></td>
              <td class="right"><Span ns={x.user} /></td>
              <td class="right"><Span ns={x.kernel} /></td>
              <td class="right"><Span ns={x.faults} /></td>
              <td class="right"><Span ns={x.served} /></td>
              <td class="right">{count(x.packets)}</td>
              <td class="right">{count(x.requests)}</td>
              <td class="right"><Span ns={x.taken} /></td>
              <td class="right"><Span ns={x.ran} /></td>
            </tr>
          ))}
        </tbody>
      </table>
      {p.processes.length > rows.length && <button type="button" class="button small" onClick={() => (all.value = true)}>All {count(p.processes.length)}</button>}
      {p.left_out > 0 && <p class="muted">{many(p.left_out, "further process", "further processes")} not shown</p>}
    </>
  );
}

function WhoseTime({ p }: { p: Profile }): JSX.Element | null {
  const m = useMemo(() => matrix(p.pairs, SIDES), [p]);
  if (!m.victims.length) return null;
  return (
    <>
      <h2>Whose time was taken, and for whom</h2>
      <table class="plain profile-matrix">
        <thead>
          <tr><th>Time of</th>{m.beneficiaries.map((b) => <th key={called(b)} class="right turned">for {seen(called(b))}</th>)}</tr>
        </thead>
        <tbody>
          {m.victims.map((v, r) => (
            <tr key={called(v)}>
              <th scope="row">{seen(called(v))}</th>
              {m.beneficiaries.map((b, c) => (
                <td key={called(b)} class="right cell">
                  {m.time[r]![c]! > 0 && <i style={{ width: `${(100 * m.time[r]![c]!) / m.most}%` }} aria-hidden="true" />}
                  <span>{m.time[r]![c]! > 0 ? <Span ns={m.time[r]![c]!} /> : ""}</span>
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      <p class="muted">
        {span(m.total)} in all{m.rest > 0 && `, of which ${span(m.rest)} of or for others than these`}.
        {p.pairs_left_out > 0 && ` ${many(p.pairs_left_out, "further pair")} not shown.`}
      </p>
    </>
  );
}

function Clients({ p }: { p: Profile }): JSX.Element | null {
  if (!p.clients.length) return null;
  return (
    <>
      <h2>Servers, since a client's message</h2>
      <table class="plain">
        <thead><tr><th>Server</th><th>Client</th><th class="right">Time</th></tr></thead>
        <tbody>
          {p.clients.slice(0, ROWS).map((c) => (
            <tr key={`${c.victim} ${c.beneficiary ?? c.beneficiary_name}`}>
              <td>{seen(called({ number: c.victim, name: c.victim_name }))}</td>
              <td>{seen(called({ number: c.beneficiary, name: c.beneficiary_name }))}</td>
              <td class="right"><Span ns={c.time} /></td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}

function Functions({ p, one }: { p: Profile; one: ProfileProcess | undefined }): JSX.Element {
  const question = useQuestion<Flame>(p.samples ? "profile/flame" : null, { number: one?.number ?? null, context: context.value });
  return (
    <div class="profile-right">
      <h2>{one ? `What ${seen(one.name || "?")} ${idOf(one.number)} is charged with` : "Functions, by the process that is charged"}</h2>
      <div class="profile-choice">
        <label>
          Context{" "}
          <select value={context.value} onChange={(e) => (context.value = e.currentTarget.value)}>
            <option value="">all</option>
            {CONTEXTS.map((c) => <option key={c} value={c}>{c}</option>)}
          </select>
        </label>
        <label>
          Process{" "}
          <select value={one?.number ?? ""} onChange={(e) => go({ process: e.currentTarget.value === "" ? null : Number(e.currentTarget.value) })}>
            <option value="">all</option>
            {p.processes.slice(0, ROWS).map((x) => <option key={x.number} value={x.number}>{seen(x.name || "?")} {idOf(x.number)}</option>)}
          </select>
        </label>
        <input type="search" placeholder="Find a function" aria-label="Find a function" value={search.value} onInput={(e) => (search.value = e.currentTarget.value)} />
        {one?.where_packets && <button type="button" class="button small" onClick={() => go({ where: one.where_packets!, view: "packets" })}>Its packets</button>}
        {one && <button type="button" class="button small" onClick={() => go({ process: null })}>All processes</button>}
      </div>
      {p.samples ? (
        <>
          <div class="profile-flame">
            <Answer asked={question} what="Reading the samples">
              {(flame) => <FlamePicture key={`${one?.number} ${context.value}`} flame={flame} search={search.value} unit="sample" tint={tint} nothing="No sample is of this process and context." />}
            </Answer>
          </div>
          <p class="muted">{many(p.samples[0], "sample")} of CPUs that were not idle, {span(p.samples[1])} each. Colours: process, interrupt, user mode, kernel.</p>
        </>
      ) : (
        <Empty title="No samples">Record with a --rate above 0.</Empty>
      )}
    </div>
  );
}

function Whole(): JSX.Element {
  const question = useQuestion<ProfileAnswer>("profile");
  return (
    <Answer asked={question} what="Adding up the profile">
      {({ profile: p }) => {
        if (!p) return <Empty title="No profile">This log does not say whom the CPUs worked for: record with -p profile.</Empty>;
        const one = p.processes.find((x) => x.number === at.process.value);
        return (
          <Split name="profile" direction="row" start={0.56}
            first={<div class="profile-left"><Facts p={p} /><Processes p={p} /><WhoseTime p={p} /><Clients p={p} /></div>}
            second={<Functions p={p} one={one} />} />
        );
      }}
    </Answer>
  );
}

export const profile: View = {
  id: "profile",
  title: "Profile",
  words: "Whom the CPUs worked for, and whose time was taken for it",
  filtered: false,
  docked: false,
  draw: Whole,
};
