import { expect, it } from "vitest";
import type { KubernetesEvent } from "../api/kubernetes";
import { type EventFilter, selectEvents } from "./events";

const event = (uid: string, type: string, reason: string): KubernetesEvent => ({
  ...{ metadata: { uid }, type, reason, message: "Back-off restarting" },
  involvedObject: { uid: `of-${uid}`, kind: "Pod", namespace: "shop", name: `web-${uid}` },
});
const all = [event("1", "Normal", "Started"), event("2", "Warning", "BackOff"), { metadata: { uid: "3" } }];

it.each<[Partial<EventFilter>, string[]]>([
  [{}, ["1", "2", "3"]],
  [{ onlyWarnings: true }, ["2"]],
  [{ text: "back-OFF" }, ["1", "2"]],
  [{ text: "WEB-1" }, ["1"]],
  [{ text: "pod" }, ["1", "2"]],
  [{ uids: new Set(["of-2"]) }, ["2"]],
  [{ uids: new Set() }, []],
])("selected by %j", (filter, expected) => {
  const selected = selectEvents(all, { text: "", onlyWarnings: false, uids: null, ...filter });
  expect(selected.map(({ metadata }) => metadata.uid)).toEqual(expected);
});
