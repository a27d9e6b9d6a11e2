// The table of reasons, loaded from the gateway; this file has no copy of it. The next step after a
// failure comes from the advice of the gateway only.

import { load } from "./api.js";

let table = [];
const byName = new Map();

export async function loadReasons() {
  table = await load("reasons.json");
  for (const row of table) byName.set(`${row.domain} ${row.name}`, row);
}

export const reasons = () => table;

/** Looks a reason up by its name alone. */
export const named = (name) => table.find((row) => row.name === name);

/** The row of a failure, or the general row of its code for a reason of a newer version. */
export function row(failure) {
  const known = byName.get(`${failure.domain} ${failure.reason}`) ?? named(failure.reason);
  const grpc = failure.code ?? 2;
  return (
    known ?? table.find((one) => one.grpc === grpc) ?? table.find((one) => one.grpc === 2) ?? {}
  );
}
