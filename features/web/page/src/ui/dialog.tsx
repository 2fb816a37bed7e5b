import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { RequestFailure } from "../api/client";
import { Failure } from "./notice";

/** Asks the reader to confirm a change. It stays open while the request runs, and after an error. */
export function ConfirmDialog({
  title,
  confirm,
  isReady = true,
  onConfirm,
  onClose,
  children,
}: {
  title: string;
  /** The name of the button. */
  confirm: string;
  isReady?: boolean;
  /** Resolves when it is done, which closes the dialog. */
  onConfirm: () => Promise<void>;
  onClose: () => void;
  children: ComponentChildren;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  const cancel = useRef<HTMLButtonElement>(null);
  const [isRunning, setRunning] = useState(false);
  const [error, setError] = useState<unknown>(null);
  useLayoutEffect(() => {
    // Browsers that do not know `closedby` close it at the third Escape.
    dialog.current?.setAttribute("closedby", isRunning ? "none" : "closerequest");
  }, [isRunning]);
  useLayoutEffect(() => {
    dialog.current?.showModal();
    // Not the button that confirms: the Enter that has opened the dialog may still be held.
    const first = dialog.current?.querySelector<HTMLElement>("input") ?? cancel.current;
    first?.focus();
  }, []);
  const run = async () => {
    setRunning(true);
    setError(null);
    try {
      await onConfirm();
      dialog.current?.close();
    } catch (failure) {
      setError(failure);
    }
    setRunning(false);
  };
  return (
    <dialog
      ref={dialog}
      aria-label={title}
      onCancel={(event) => {
        if (isRunning) event.preventDefault();
      }}
      onClose={onClose}
    >
      <form
        class="stack"
        onKeyDown={(event) => {
          if (event.key === "Enter" && event.repeat) event.preventDefault();
        }}
        onSubmit={(event) => {
          event.preventDefault();
          if (isReady && !isRunning) void run();
        }}
      >
        <h2 class="wrap">{title}</h2>
        {children}
        {error !== null && <Failure what={outcomeOf(error)} error={error} />}
        <div class="row">
          <button type="submit" class="primary" disabled={!isReady || isRunning}>
            {isRunning ? "Working…" : confirm}
          </button>
          <button ref={cancel} type="button" disabled={isRunning} onClick={() => dialog.current?.close()}>
            Cancel
          </button>
        </div>
      </form>
    </dialog>
  );
}

/** A request without an answer may have changed something. */
function outcomeOf(error: unknown): string {
  const isAnswered = !(error instanceof RequestFailure) || (error.status >= 400 && error.status < 500);
  return isAnswered ? "The request was refused" : "It is not known whether something was changed";
}
