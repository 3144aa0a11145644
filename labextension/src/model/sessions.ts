import type { Session } from '@jupyterlab/services';

/**
 * The session whose kernel belongs to a client.
 *
 * @param sessions - those that run on this server
 * @param clientOf - asked for kernels that have another id than their client,
 *   as those have that the kernelspec's launcher started
 * @returns null if none does: it may be of another server, or a program
 */
export async function findSession(
  client: string,
  sessions: ReadonlyArray<Session.IModel>,
  clientOf: (kernelId: string) => Promise<string | null>
): Promise<Session.IModel | null> {
  const same = sessions.find(session => session.kernel?.id === client);
  if (same) {
    return same;
  }
  const found = await Promise.all(
    sessions.map(async session =>
      session.kernel && (await clientOf(session.kernel.id)) === client
        ? session
        : null
    )
  );
  return found.find(session => session !== null) ?? null;
}
