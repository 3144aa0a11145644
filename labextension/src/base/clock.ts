/** Seconds that only go forward. */
export const clock = () => performance.now() / 1000;
