/** Zoom and pan of the map by wheel, mouse and touch, and the position of the pointer. */

/**
 * Make a view zoom and pan by gestures.
 * @param {import("./view.js").View} view
 * @param {(px: number, py: number) => void} onPoint called with the pointer's position in the view, in CSS pixels
 */
export function onGestures(view, onPoint) {
  const { box } = view;
  const down = new Map();
  const place = (event) => {
    const { left, top } = box.getBoundingClientRect();
    return [event.clientX - left - box.clientLeft, event.clientY - top - box.clientTop];
  };
  box.addEventListener(
    "wheel",
    (event) => {
      if (!view.world) return;
      event.preventDefault();
      const lines = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 20 : 1;
      view.zoom(2 ** (-Math.max(-240, Math.min(240, event.deltaY * lines)) / 240), ...place(event));
    },
    { passive: false },
  );
  box.addEventListener("dblclick", (event) => view.zoom(2, ...place(event)));
  box.addEventListener("pointerdown", (event) => {
    down.set(event.pointerId, place(event));
    onPoint(...place(event));
  });
  box.addEventListener("pointermove", (event) => {
    const now = place(event);
    if (down.has(event.pointerId)) moved(view, box, down, event.pointerId, now);
    onPoint(...now);
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    box.addEventListener(kind, (event) => down.delete(event.pointerId));
  }
}

function moved(view, box, down, id, now) {
  const before = down.get(id);
  if (!box.hasPointerCapture(id) && view.world) box.setPointerCapture(id);
  down.set(id, now);
  if (!view.world) return;
  if (down.size === 1) {
    view.pan(now[0] - before[0], now[1] - before[1]);
    return;
  }
  const [other] = [...down].filter(([pointer]) => pointer !== id).map(([, at]) => at);
  const apart = (at) => Math.hypot(at[0] - other[0], at[1] - other[1]) || 1;
  view.zoom(apart(now) / apart(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
}
