// The meaning of each reason, from the mesh's own table; this file has no copy of it. The next
// step after a failure is in the advice of the gateway, and nowhere else.

import { load } from "./api.js";

let table = [];
const byName = new Map();

export async function loadReasons() {
  table = await load("reasons.json");
  for (const row of table) byName.set(`${row.domain} ${row.name}`, row);
}

export const reasons = () => table;

/** By name alone, for places that know no more. */
export const named = (name) => table.find((row) => row.name === name);

/** The row of a failure, or the general one of its code when a newer mesh knows more than this one. */
export function row(failure) {
  const known = byName.get(`${failure.domain} ${failure.reason}`) ?? named(failure.reason);
  const grpc = failure.code ?? 2;
  return (
    known ?? table.find((one) => one.grpc === grpc) ?? table.find((one) => one.grpc === 2) ?? {}
  );
}
