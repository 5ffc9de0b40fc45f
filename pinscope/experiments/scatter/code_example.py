

piece, pieces = {piece}, {pieces}
memory = cupy.cuda.alloc_pinned_memory(2 * pieces * piece)
area = np.frombuffer(memory, np.uint8, 2 * pieces * piece).reshape(-1, piece)  # pinned: pieces with others between
places = {places}
row = cupy.empty((pieces, piece), np.uint8)  # on the GPU, side by side
stream = cupy.cuda.Stream(non_blocking=True)

area[:] = np.arange(len(area), dtype=np.uint32)[:, None] % 251
gather = mover(area, row, places, to_gpu=True, stream=stream)
gather()  # may be called again and again
stream.synchronize()
assert (row.get() == area[places]).all()

row[:] = 7
cupy.cuda.get_current_stream().synchronize()
scatter = mover(area, row, places, to_gpu=False, stream=stream)
scatter()
stream.synchronize()
assert (area[places] == 7).all()
