import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { RequestFailure } from "../api/client";
import { Failure } from "./notice";

/** Asks the reader to confirm what will change. It cannot be closed while the request runs, and it stays open after an error. */
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
  const [isRunning, setRunning] = useState(false);
  const [error, setError] = useState<unknown>(null);
  useLayoutEffect(() => {
    dialog.current?.showModal();
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
          <button type="button" disabled={isRunning} onClick={() => dialog.current?.close()}>
            Cancel
          </button>
        </div>
      </form>
    </dialog>
  );
}

/** A request without an answer may have changed something. */
function outcomeOf(error: unknown): string {
  const isAnswered = error instanceof RequestFailure && error.status >= 400 && error.status < 500;
  return isAnswered ? "The request was refused" : "It is not known whether something was changed";
}
