// Light or dark: as the system says, unless the reader chose. The choice is kept in this browser.

import { computed, signal } from "@preact/signals";

export type Choice = "system" | "light" | "dark";

const KEY = "kpat-theme";
const system = signal<"light" | "dark">("light");
export const choice = signal<Choice>("system");
export const theme = computed<"light" | "dark">(() => (choice.value === "system" ? system.value : choice.value));

export function followTheme(): void {
  const query = matchMedia("(prefers-color-scheme: dark)");
  const read = () => (system.value = query.matches ? "dark" : "light");
  query.addEventListener("change", read);
  read();
  const kept = localStorage.getItem(KEY);
  if (kept === "light" || kept === "dark") choice.value = kept;
  theme.subscribe((t) => document.documentElement.setAttribute("data-theme", t));
}

export function choose(next: Choice): void {
  choice.value = next;
  if (next === "system") localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, next);
}
