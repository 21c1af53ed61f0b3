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
    const { length, planes, signed } = head, values = new (planes > 3 ? Float64Array : Int32Array)(length);
    for (let plane = 0; plane < planes; plane++, place += length) {
      const bytes = data.subarray(place, place + length), factor = 256 ** plane;
      if (plane === 0) values.set(bytes);
      else if (planes > 3) for (let i = 0; i < length; i++) values[i] += bytes[i] * factor;
      else for (let i = 0; i < length; i++) values[i] |= bytes[i] << (8 * plane);
    }
    if (signed && planes > 3) for (let i = 0; i < length; i++) values[i] = values[i] % 2 ? -(values[i] + 1) / 2 : values[i] / 2;
    else if (signed) for (let i = 0; i < length; i++) values[i] = (values[i] >>> 1) ^ -(values[i] & 1);
    columns[head.name] = values;
  }
  return columns;
}
