// What a view is to the page: a name, a key and something to draw. A new view is a folder beside this file and one
// line in app/views.ts.

import type { FunctionComponent } from "preact";

export interface View {
  /** Its part of the address. */
  id: string;
  title: string;
  /** The question it answers, in a few words. */
  words: string;
  draw: FunctionComponent;
  /** The filter bar and the strip stand above it. */
  filtered: boolean;
  /** The chosen packet stands beside it. */
  docked: boolean;
}
