import type { ComponentChildren } from "preact";
import { useErrorBoundary } from "preact/hooks";
import { Failure } from "./notice";

/** Keeps an error of a part of the page, such as data of a wrong shape, in that part. */
export function Boundary({ what, children }: { what: string; children: ComponentChildren }) {
  const error: unknown = useErrorBoundary()[0];
  return error === undefined ? <>{children}</> : <Failure what={what} error={error} />;
}
