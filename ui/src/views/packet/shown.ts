// When the packet or frame on the screen was first seen, for whoever marks it on another axis.

import { signal } from "@preact/signals";

export const shownAt = signal<number | null>(null);
