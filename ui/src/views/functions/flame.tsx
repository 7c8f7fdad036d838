// The flame graph: time by function and caller, of all packets or of those that the filter leaves.

import type { JSX } from "preact";
import { useQuestion } from "../../api/question.ts";
import type { Flame } from "../../api/types.ts";
import { asked, at } from "../../base/place.ts";
import { FlamePicture } from "../../widgets/flame.tsx";
import { Answer } from "../../widgets/states.tsx";

export function FlameGraph({ search }: { search: string }): JSX.Element {
  const where = asked(at.where.value, at.time.value);
  const question = useQuestion<Flame>("flame", { where });
  return (
    <Answer asked={question} what={where ? "Adding up the calls of these packets" : "Adding up all calls"}>
      {(flame) => <FlamePicture flame={flame} search={search} nothing="No function with a duration was recorded for these packets." />}
    </Answer>
  );
}
