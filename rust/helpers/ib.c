// SPDX-License-Identifier: GPL-2.0

#include <linux/dma-mapping.h>
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_verbs.h>

#include "helpers.h"

__rust_helper bool rust_helper_rdma_protocol_roce(const struct ib_device *device, u32 port)
{
	return rdma_protocol_roce(device, port);
}

__rust_helper u32 rust_helper_rdma_start_port(const struct ib_device *device)
{
	return rdma_start_port(device);
}

__rust_helper u32 rust_helper_rdma_end_port(const struct ib_device *device)
{
	return rdma_end_port(device);
}

__rust_helper bool rust_helper_ib_device_try_get(struct ib_device *device)
{
	return ib_device_try_get(device);
}

__rust_helper void rust_helper_ib_gid_netdev_put(struct net_device *ndev)
{
	dev_put(ndev);
}

/* The cookie of the namespace a network device is in; the caller keeps the device. */
__rust_helper u64 rust_helper_ib_netdev_net_cookie(const struct net_device *ndev)
{
	u64 cookie;

	/* It may move to another one meanwhile, and the former one go. */
	rcu_read_lock();
	cookie = dev_net(ndev)->net_cookie;
	rcu_read_unlock();
	return cookie;
}

/* Copies what fits of a device's own name on its bus, with a zero at the end. */
__rust_helper bool rust_helper_ib_parent_name(const struct ib_device *device, char *name, size_t len)
{
	if (!device->dev.parent)
		return false;
	strscpy(name, dev_name(device->dev.parent), len);
	return true;
}

/* Vendor and number of what the device is on the PCI bus; false if it is something else. The caller keeps the device. */
__rust_helper bool rust_helper_ib_pci(const struct ib_device *device, struct kapi_pci *pci)
{
#ifdef CONFIG_PCI
	const struct device *parent = device->dev.parent;
	const struct pci_dev *dev;

	if (!parent || !dev_is_pci(parent))
		return false;
	dev = to_pci_dev(parent);
	pci->vendor = dev->vendor;
	pci->device = dev->device;
	return true;
#else
	return false;
#endif
}

__rust_helper struct ib_qp *rust_helper_ib_create_qp(struct ib_pd *pd, struct ib_qp_init_attr *attr)
{
	return ib_create_qp(pd, attr);
}

__rust_helper int rust_helper_ib_destroy_qp(struct ib_qp *qp)
{
	return ib_destroy_qp(qp);
}

__rust_helper void rust_helper_ib_dealloc_pd(struct ib_pd *pd)
{
	ib_dealloc_pd(pd);
}

__rust_helper int rust_helper_ib_dereg_mr(struct ib_mr *mr)
{
	return ib_dereg_mr(mr);
}

__rust_helper int rust_helper_ib_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
			     const struct ib_send_wr **bad)
{
	return ib_post_send(qp, wr, bad);
}

__rust_helper int rust_helper_ib_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr)
{
	return ib_post_recv(qp, wr, NULL);
}

__rust_helper u64 rust_helper_ib_dma_map_single(struct ib_device *device, void *addr, size_t len,
				  unsigned int direction)
{
	return ib_dma_map_single(device, addr, len, direction);
}

__rust_helper void rust_helper_ib_dma_unmap_single(struct ib_device *device, u64 addr, size_t len,
				     unsigned int direction)
{
	ib_dma_unmap_single(device, addr, len, direction);
}

__rust_helper int rust_helper_ib_dma_mapping_error(struct ib_device *device, u64 addr)
{
	return ib_dma_mapping_error(device, addr);
}

__rust_helper int rust_helper_ib_dma_map_sg(struct ib_device *device, struct scatterlist *sg, int nents,
			      unsigned int direction)
{
	return ib_dma_map_sg(device, sg, nents, direction);
}

/* Whether what the device writes to mapped memory has to be copied or flushed before the CPU looks at it. */
__rust_helper bool rust_helper_ib_needs_sync(struct ib_device *device, struct scatterlist *sg)
{
	return !ib_uses_virt_dma(device) && dma_need_sync(device->dma_device, sg_dma_address(sg));
}

__rust_helper void rust_helper_ib_dma_unmap_sg(struct ib_device *device, struct scatterlist *sg, int nents,
				 unsigned int direction)
{
	ib_dma_unmap_sg(device, sg, nents, direction);
}

__rust_helper void rust_helper_ib_dma_sync_single_for_cpu(struct ib_device *device, u64 addr, size_t len,
					    unsigned int direction)
{
	ib_dma_sync_single_for_cpu(device, addr, len, direction);
}

__rust_helper void rust_helper_ib_dma_sync_single_for_device(struct ib_device *device, u64 addr, size_t len,
					       unsigned int direction)
{
	ib_dma_sync_single_for_device(device, addr, len, direction);
}

__rust_helper enum rdma_ah_attr_type rust_helper_rdma_ah_find_type(struct ib_device *device, u32 port)
{
	return rdma_ah_find_type(device, port);
}

__rust_helper void rust_helper_rdma_ah_set_grh(struct rdma_ah_attr *attr, union ib_gid *dgid, u32 flow_label,
				 u8 sgid_index, u8 hop_limit, u8 traffic_class)
{
	rdma_ah_set_grh(attr, dgid, flow_label, sgid_index, hop_limit, traffic_class);
}

/* Pages that have to be left of a memory group: without any, its TCP would have a program killed. */
#define IB_SPARE 64

/* Whether so many more pages could be had that way now: they are allocated, and given back. May sleep if `how` may. */
static bool ib_has_spare(gfp_t how)
{
	struct page *page, *next;
	LIST_HEAD(pages);
	int left = IB_SPARE;

	while (left && (page = alloc_page(how))) {
		list_add(&page->lru, &pages);
		left--;
	}
	list_for_each_entry_safe(page, next, &pages, lru)
		__free_page(page);
	return !left;
}

/*
 * Zeroed, contiguous; quiet when there is none. Charged to the caller's memory group, unless it is urgent: then it
 * is not refused either as long as the system has any.
 */
__rust_helper void *rust_helper_ib_alloc_pages(size_t size, bool urgent)
{
	gfp_t how = (urgent ? GFP_KERNEL : GFP_KERNEL_ACCOUNT | __GFP_NORETRY) | __GFP_NOWARN;
	void *pages = alloc_pages_exact(size, how | __GFP_ZERO);

	if (!pages || urgent || ib_has_spare(how))
		return pages;
	free_pages_exact(pages, size);
	return NULL;
}

/* One more reference to each page of the above: after free_pages_exact() as well, the memory stays allocated. */
__rust_helper void rust_helper_ib_keep_pages(void *pages, size_t size)
{
	size_t offset;

	for (offset = 0; offset < size; offset += PAGE_SIZE)
		get_page(virt_to_page(pages + offset));
}
