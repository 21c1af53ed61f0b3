// Columns of whole numbers: base64, gzip, byte planes. The twin of columns.py.

async function inflate(text) {
  const bytes = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function unpack(packed) {
  if (packed.version !== 1) throw new Error(`columns of version ${packed.version}`);
  const data = await inflate(packed.blob);
  const columns = {};
  let place = 0;
  for (const head of packed.columns) {
    const count = head.length;
    const values = new (head.planes > 3 ? Float64Array : Int32Array)(count);
    let factor = 1;
    for (let plane = 0; plane < head.planes; plane++, factor *= 256, place += count)
      for (let i = 0; i < count; i++) values[i] += data[place + i] * factor;
    if (head.signed) for (let i = 0; i < count; i++) values[i] = values[i] % 2 ? -(values[i] + 1) / 2 : values[i] / 2;
    columns[head.name] = values;
  }
  return columns;
}
